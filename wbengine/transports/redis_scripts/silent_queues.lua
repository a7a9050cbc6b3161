-- Result: owned queues whose owners have not reported for these seconds
--
-- Changes nothing. After a pause in which no process called `sweep_dead_consumers`, the result is
-- empty: owners first get time to report.

-- include server

local time, silent_ms = now(), seconds * 1000
local last_time = tonumber(call('HGET', meta_key, 't') or 0)
local since = tonumber(call('HGET', meta_key, 'since') or time)
if time - last_time > silent_ms or time - since < silent_ms then return {} end
return call('ZRANGEBYSCORE', prefix .. 'own', '-inf', time - silent_ms)
