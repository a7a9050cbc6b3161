-- Result: for each epoch, state, holder, result; nil if there is no row
--
-- Changes nothing.

-- include rows

local states = {}
for i, id in ipairs(ids) do
  local row = read_row(id)
  states[i] = row and {row.epoch, row.state, row.holder, full_result(row)} or false
end
return states
