-- Arguments: consumer or '', numbers of takes without a reply and `TAKE:NUMBER` of undelivered
--   messages
-- Result: 1 if all keys were deleted, else 0
--
-- Removes a consumer and requeues its messages. The last one deletes all keys, unless messages
-- exist.

-- include put_back
-- include drop_queue
-- include first_write

local t, unheard = now(), {}
for what in string.gmatch(ARGV[2], '%S+') do unheard[what] = true end
if ARGV[1] ~= '' then bury(ARGV[1], unheard) end
if call('ZCOUNT', C, '(' .. t - GONE, '+inf') > 0 then return 0 end
for _, who in ipairs(call('ZRANGE', C, 0, -1)) do bury(who, {}) end
for _, queue in ipairs(call('ZRANGEBYSCORE', P .. 'own', '-inf', t - GONE)) do drop(queue) end
local queues = call('SMEMBERS', P .. 'qs')
for _, queue in ipairs(queues) do
  if call('EXISTS', P .. 'd:' .. queue) == 1 then return 0 end
end
for _, queue in ipairs(queues) do call('DEL', P .. 'bell:' .. queue) end
call('DEL', P .. 'm', P .. 'x', P .. 'b', P .. 'qs', P .. 'own', P .. 'c')
return 1
