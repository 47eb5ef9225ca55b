"""One search for every list of messages: the query language, and a page of what matches.

`query` reads the text by a list's table of fields, `content` says what of a message is searched,
`conditions` are those of the database, `find` bounds what one request reads, `rights` refuses what
would reveal redacted values.
"""
