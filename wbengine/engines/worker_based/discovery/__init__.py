"""Which workers there are, as others see them: asked, heard, and noticed when they fall silent."""
