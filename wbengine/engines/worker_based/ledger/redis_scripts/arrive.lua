-- Arguments: last known `run_id` and count of the server
-- Result: its `run_id`, the count, the number of its incarnation, and of the last incarnation that
--   began with lost data (0: none)
--
-- Detects a new incarnation of the server. Without an append-only file, each restart is treated as
-- a loss of data. With one, a restart is a loss only if the count is lower than a client has seen.

-- include ledger

local function told(section, pattern)
  local info = redis.pcall('INFO', section)
  return type(info) == 'string' and string.match(info, pattern) or ''
end
local L, run, t = P .. 'server', told('server', 'run_id:(%w+)'), now()
local l = call('HMGET', L, 'run', 'life', 'boot', 'count', 'from')
local life, boot, count = tonumber(l[2] or 0), tonumber(l[3] or 0), tonumber(l[4] or 0)
local from = tonumber(l[5] or 0)
if run ~= '' and l[1] ~= run then
  life, boot = life + 1, count
  call('PEXPIRE', L, LEDGER_TTL)
  call('HSET', L, 'run', run, 'life', life, 'boot', boot)
  if l[1] then
    if told('persistence', 'aof_enabled:(%d)') == '1' then
      call('HSET', L, 'hold', t + HOLD)
    else
      from = life
    end
  end
  call('PEXPIRE', L, LEDGER_TTL)
end
if ARGV[1] ~= '' and ARGV[1] ~= run and tonumber(ARGV[2]) > boot then from = life end
if from ~= tonumber(l[5] or 0) then call('HSET', L, 'from', from) end
return {run, count, life, from}
