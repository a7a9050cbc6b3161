-- forget(queue, numbers): delete messages and their bodies
-- clear(queue) -> number of waiting messages, which are deleted

-- include server

local function forget(queue, given)
  local numbers, bodies = {}, {}
  for i, number in ipairs(given) do
    local id
    numbers[i], id = string.match(number, '^(%d+)@?(%x*)')
    if id ~= '' then bodies[#bodies + 1] = P .. 'b:' .. id end
  end
  call('HDEL', P .. 'd:' .. queue, unpack(numbers))
  if #bodies > 0 then call('DEL', unpack(bodies)) end
end
local function clear(queue)
  local numbers = call('ZRANGE', P .. 'q:' .. queue, 0, -1)
  for _, number in ipairs(numbers) do forget(queue, {number}) end
  call('DEL', P .. 'q:' .. queue)
  return #numbers
end
