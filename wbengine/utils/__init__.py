"""Small helpers under the names that users of TaskFlow import them by."""
