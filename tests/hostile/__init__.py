"""Invalid and malicious messages, and their effects on workers and engines."""
