-- silent_since: processes whose last report is older count as gone, if they had time to report
-- had_time() -> whether they had: since then, the server was reachable all the time, because consumers
--   called `sweep_dead_consumers`; nil if none ever did

-- include server

local silent_since = now() - GONE_MS
local function had_time()
  local last, since = unpack(call('HMGET', meta_key, 't', 'since'))
  if not last then return nil end
  return tonumber(last) >= silent_since and tonumber(since) <= silent_since
end
