"""The journal as a file: out of one Delayboard, into another (docs/dead-letters.md)."""
