"""Real request trackers, finders and servers in a simulated world."""
