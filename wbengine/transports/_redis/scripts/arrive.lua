-- Result: its `run_id`, the count, the number of its incarnation, and of the last incarnation that
--   began with lost data (0: none), and the format of the keys
--
-- Detects a new incarnation of the server. Without an append-only file, each restart is treated as
-- a loss of data. With one, a restart is a loss only if the count is lower than a client has seen. A
-- server that was wiped does not need a restart.

-- include ledger

local function read_info(section, pattern)
  local text = redis.pcall('INFO', section)
  return type(text) == 'string' and string.match(text, pattern) or ''
end
local server_key, run = prefix .. 'server', read_info('server', 'run_id:(%w+)')
local stored = call('HMGET', server_key, 'run', 'boot', 'count', 'format')
if not stored[4] then
  call('HSET', server_key, 'format', FORMAT)
  call('PEXPIRE', server_key, LEDGER_MS)
end
local boot, count = tonumber(stored[2] or 0), tonumber(stored[3] or 0)
local is_loss = false
if run ~= '' and stored[1] ~= run then
  boot = count
  call('PEXPIRE', server_key, LEDGER_MS)
  begin_incarnation()
  call('HSET', server_key, 'run', run, 'boot', boot)
  if stored[1] then
    if read_info('persistence', 'aof_enabled:(%d)') == '1' then
      call('HSET', server_key, 'hold', now() + CLAIM_REFUSAL_MS)
    else
      is_loss = true
    end
  end
  call('PEXPIRE', server_key, LEDGER_MS)
end
local is_wiped = not (stored[1] or ledger_info()[3])
if run_id ~= '' and (run_id ~= run or is_wiped) and tonumber(claim_count) > boot then
  is_loss = true
end
local incarnation, from = tonumber(ledger_info()[2] or 0), tonumber(ledger_info()[3] or 0)
if is_loss and from ~= incarnation then
  declare_loss(incarnation)
  from = incarnation
end
return {run, count, incarnation, from, tonumber(stored[4] or FORMAT)}
