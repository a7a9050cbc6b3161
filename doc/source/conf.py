"""Configuration of the documentation."""

project = "wbengine"
author = "The wbengine developers"
extensions: list[str] = []
html_theme = "furo"
