"""The core: what runs next, and what becomes of what ran; not where."""
