"""Small programs, each about one thing: `python -m examples.hello_world` in this checkout."""
