-- Deletes rows in any state, with their results.

-- include rows

remove_rows(ids)
