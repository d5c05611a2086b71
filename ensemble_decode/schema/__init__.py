"""Options described once: their values are checked, read from text and JSON, and listed from one declaration each."""
