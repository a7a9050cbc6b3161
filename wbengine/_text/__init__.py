"""Values as text: JSON, durations, versions of formats, and safe output on terminals."""
