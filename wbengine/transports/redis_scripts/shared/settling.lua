-- delete_body(number of a deleted message, with its marks): delete its out-of-line body
-- settle_messages(consumer, queue, numbers): delete messages of a consumer -> number that it had

-- include server

local function delete_body(number)
  local body = string.match(number, '^%d+@(%x+)')
  if body then call('DEL', prefix .. 'b:' .. body) end
end
local function settle_messages(consumer, queue, numbers)
  local fields, count = {}, 0
  for _, number in ipairs(numbers) do
    local field = queue .. ' ' .. number
    if not string.find(number, '@', 1, true) then
      fields[#fields + 1] = field
    elseif call('HDEL', held_key(consumer), field) == 1 then
      delete_body(number)
      count = count + 1
    end
  end
  if #fields > 0 then count = count + call('HDEL', held_key(consumer), unpack(fields)) end
  return count
end
