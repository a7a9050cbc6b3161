"""Codecs of wbengine for classes of other libraries."""
