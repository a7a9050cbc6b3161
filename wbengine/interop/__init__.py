"""Interoperation with other systems, through their own protocols."""
