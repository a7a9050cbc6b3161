"""What follows from the end of a task: links, chains, groups and chords.  Pure."""
