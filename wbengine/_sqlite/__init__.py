"""SQLite files without SQLAlchemy: parts that the folder transport and the SQL stores share."""
