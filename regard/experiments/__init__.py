"""Small programs on top of everything else, each with an answer to show."""
