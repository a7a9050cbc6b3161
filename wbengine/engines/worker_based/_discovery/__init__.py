"""Known workers: announcements, heartbeats and the detection of lost workers."""
