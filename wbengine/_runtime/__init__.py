"""The core: decides what runs next and handles results; independent of where tasks run."""
