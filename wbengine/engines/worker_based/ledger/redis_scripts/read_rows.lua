-- Arguments: id...
-- Result: for each epoch, state, holder, result
--
-- Changes nothing.

-- include row

local rows = {}
for i, id in ipairs(ARGV) do
  local row = read_row(id)
  rows[i] = {row[1], row[2], row[3], row[5] and full_result(row[4], row[5]) or row[4]}
end
return rows
