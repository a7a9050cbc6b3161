"""No models. Django reports the end of `migrate` only to applications with this module."""
