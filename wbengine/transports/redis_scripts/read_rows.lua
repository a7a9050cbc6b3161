-- Result: for each epoch, state, holder, result
--
-- Changes nothing.

-- include rows

local states = {}
for i, id in ipairs(ids) do
  local row = read_row(id)
  states[i] = {row[1], row[2], row[3], row[5] and full_result(row[4], row[5]) or row[4]}
end
return states
