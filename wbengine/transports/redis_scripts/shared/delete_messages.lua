-- delete_messages(queue, numbers with marks): delete messages and their bodies
-- purge(queue): delete the waiting messages -> their number

-- include server

local function delete_messages(queue, marked_numbers)
  local numbers, bodies = {}, {}
  for i, number in ipairs(marked_numbers) do
    local body
    numbers[i], body = string.match(number, '^(%d+)@?(%x*)')
    if body ~= '' then bodies[#bodies + 1] = prefix .. 'b:' .. body end
  end
  call('HDEL', data_key(queue), unpack(numbers))
  if #bodies > 0 then call('DEL', unpack(bodies)) end
end
local function purge(queue)
  local numbers = call('ZRANGE', prefix .. 'q:' .. queue, 0, -1)
  for _, number in ipairs(numbers) do delete_messages(queue, {number}) end
  call('DEL', prefix .. 'q:' .. queue)
  return #numbers
end
