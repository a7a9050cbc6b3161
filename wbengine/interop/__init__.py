"""Other systems, spoken to in their own words."""
