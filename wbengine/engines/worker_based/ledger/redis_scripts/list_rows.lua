-- Arguments: time of a position in milliseconds or -inf, its id, maximum number of rows
-- Result: the current time, (milliseconds, id, epoch, state, holder or nil)...
--
-- Returns a page of rows after the position, in the order of time and id. Changes nothing.

-- include row

local since, last, most = ARGV[1], ARGV[2], tonumber(ARGV[3])
local found, skip = {now()}, 0
local function later(id)  -- as a sorted set sees it, whatever the locale
  for k = 1, #id do
    local mine, other = string.byte(id, k), string.byte(last, k)
    if mine ~= other then return not other or mine > other end
  end
  return false
end
while #found <= most do
  local some = call('ZRANGEBYSCORE', P .. 'rows', since, '+inf', 'WITHSCORES', 'LIMIT', skip, 500)
  for i = 1, #some, 2 do
    local id, at = some[i], some[i + 1]
    if #found <= most and (at ~= since or later(id)) then
      local there = row(id)
      if there[1] then found[#found + 1] = {at, id, there[1], there[2], there[3]} end
    end
  end
  if #some < 1000 then break end
  skip = skip + 500
end
return found
