-- Result: number of rows that were read; for each epoch, state, holder, result; nil if there is no row
--
-- Changes nothing. Reads the first rows, whose results have at most MAX_BATCH_BYTES, or a larger one.

-- include rows

local states, count, bytes = {}, 0, 0
for i, id in ipairs(ids) do
  local row = read_row(id)
  local result = row and full_result(row) or ''
  bytes = bytes + #result
  if i > 1 and bytes > MAX_BATCH_BYTES then break end
  count = i
  states[i] = row and {row.epoch, row.state, row.holder, result} or false
end
return {count, states}
