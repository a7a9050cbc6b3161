"""The core: what runs next, and what becomes of what ran.  Nothing in here knows where tasks run."""
