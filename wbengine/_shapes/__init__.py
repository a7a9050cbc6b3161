"""Shapes: the values that an annotation allows, and how JSON is converted to them.

`annotations.shape_of` returns the shape of an annotation. Import it only where it is needed.
"""
