-- Result: the current time, (milliseconds, id, epoch, state, holder)...
--
-- Returns a page of rows after the position, in the order of time and id. Changes nothing.

-- include rows

limit = tonumber(limit)
local listed, offset = {now()}, 0
-- Compare as a sorted set does, independent of the locale.
local function is_later(id)
  for k = 1, #id do
    local byte, last_byte = string.byte(id, k), string.byte(last_id, k)
    if byte ~= last_byte then return not last_byte or byte > last_byte end
  end
  return false
end
while #listed <= limit do
  local page = call(
    'ZRANGEBYSCORE', prefix .. 'rows', since, '+inf', 'WITHSCORES', 'LIMIT', offset, 500
  )
  for i = 1, #page, 2 do
    local id, time = page[i], page[i + 1]
    if #listed <= limit and (time ~= since or is_later(id)) then
      local row = read_head(id)
      if row then listed[#listed + 1] = {time, id, row.epoch, row.state, row.holder} end
    end
  end
  if #page < 1000 then break end
  offset = offset + 500
end
return listed
