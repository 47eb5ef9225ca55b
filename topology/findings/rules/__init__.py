"""One module for each subject of rules, on definitions or on live numbers."""
