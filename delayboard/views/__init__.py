"""The operator's pages about messages: guard, parse, one domain call, render."""
