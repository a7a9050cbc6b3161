"""Small programs, each on one subject: run `python -m examples.hello_world` in this checkout."""
