"""Values that travel between the parts: failures, notifications, entities."""
