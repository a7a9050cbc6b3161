-- report(consumer, holder or ''): record a report of a consumer, and a heartbeat of its holder

-- include server

local function report(consumer, holder)
  call('ZADD', consumers_key, now(), consumer)
  call('PEXPIRE', held_key(consumer), UNUSED_KEY_MS)
  if holder ~= '' then call('ZADD', prefix .. 'beats', now(), holder) end
end
