-- Deletes rows in any state, with their results.

-- include removing

remove_rows(ids)
