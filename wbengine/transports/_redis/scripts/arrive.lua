-- Result: its `run_id`, the count, the number of its incarnation, and of the last incarnation that
--   began with lost data (0: none), and the format of the keys
--
-- Detects a new incarnation of the server. Without an append-only file, each restart is treated as
-- a loss of data. With one, a restart is a loss only if the count is lower than a client has seen.

-- include server

local function read_info(section, pattern)
  local info = redis.pcall('INFO', section)
  return type(info) == 'string' and string.match(info, pattern) or ''
end
local server_key, run, time = prefix .. 'server', read_info('server', 'run_id:(%w+)'), now()
local stored = call('HMGET', server_key, 'run', 'life', 'boot', 'count', 'from', 'format')
if not stored[6] then
  call('HSET', server_key, 'format', FORMAT)
  call('PEXPIRE', server_key, LEDGER_MS)
end
local incarnation, boot = tonumber(stored[2] or 0), tonumber(stored[3] or 0)
local count, from = tonumber(stored[4] or 0), tonumber(stored[5] or 0)
if run ~= '' and stored[1] ~= run then
  incarnation, boot = incarnation + 1, count
  call('PEXPIRE', server_key, LEDGER_MS)
  call('HSET', server_key, 'run', run, 'life', incarnation, 'boot', boot)
  if stored[1] then
    if read_info('persistence', 'aof_enabled:(%d)') == '1' then
      call('HSET', server_key, 'hold', time + CLAIM_REFUSAL_MS)
    else
      from = incarnation
    end
  end
  call('PEXPIRE', server_key, LEDGER_MS)
end
if run_id ~= '' and run_id ~= run and tonumber(claim_count) > boot then from = incarnation end
if from ~= tonumber(stored[5] or 0) then call('HSET', server_key, 'from', from) end
return {run, count, incarnation, from, tonumber(stored[6] or FORMAT)}
