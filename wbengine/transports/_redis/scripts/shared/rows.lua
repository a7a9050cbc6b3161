-- read_row(id) -> row; nil if there is none. A row that is OPEN although a worker may have claimed
--   it before a loss of data appears as CLAIMED by FORGOTTEN. No worker claims the row of a fence
-- read_head(id) -> row without its result, which may be large
-- full_result(row) -> its result; '' if it is lost
-- write_row(id, row, milliseconds until it expires): without the last, its expiry does not change
-- open_row(id, epoch, incarnation, milliseconds to keep its result or '') -> whether it was
--   created, or has replaced an OPEN row with a lower epoch
-- reopen_row(id, row): change it to OPEN, with the expiry of a new row
-- prolong_row(id): let it exist for the default time, if it would expire earlier
-- remove_rows(ids): delete rows in any state, with their results
-- order_rows(ids): store that these rows are opened or finished now
-- is_held_by(holder, row, epoch): also true for any holder if the server lost the real one
--
-- A row has an epoch, a state, a holder, the incarnation of the server in which it was opened, the
-- milliseconds for which its engine keeps the result, if limited, the ID of the rest of its result if
-- it is out of line, the name of its claim, and its result. All are strings, '' if missing.

-- include ledger

local function row_key(id) return prefix .. 'r:' .. id end
local function parse_row(id, text)
  local row, start = {}, nil
  row.epoch, row.state, row.holder, row.incarnation, row.ttl, row.body, row.claim, start =
    string.match(text, '^(%S+) (%S+) (%S*) (%S+) (%S*) (%S*) ([^\n]*)\n()')
  row.result = string.sub(text, start)
  local is_fence = string.sub(id, 1, #FENCE_PREFIX) == FENCE_PREFIX
  if row.state == 'open' and is_forgotten(row.incarnation) and not is_fence then
    row.state, row.holder = 'claimed', FORGOTTEN
  end
  return row
end
local function read_row(id)
  local text = call('GET', row_key(id))
  return text and parse_row(id, text) or nil
end
local function read_head(id)
  local text = call('GETRANGE', row_key(id), 0, 1023)  -- The line before the result is shorter.
  return text ~= '' and parse_row(id, text) or nil
end
local function full_result(row)
  if row.body == '' then return row.result end
  local body = call('GET', prefix .. 'b:' .. row.body)
  return body and row.result .. body or ''
end
local function row_text(row)
  local line = {row.epoch, row.state, row.holder, row.incarnation, row.ttl, row.body, row.claim}
  return table.concat(line, ' ') .. '\n' .. row.result
end
-- The result of an unfinished row may be wanted for longer than ROW_MS; nil: for any time.
local function unfinished_lifetime(row)
  return row.ttl ~= '' and math.max(tonumber(row.ttl), ROW_MS) or nil
end
local function write_row(id, row, lifetime)
  if lifetime then
    call('SET', row_key(id), row_text(row), 'PX', string.format('%.0f', lifetime))
  else
    call('SET', row_key(id), row_text(row), 'KEEPTTL')
  end
end
local function open_row(id, epoch, incarnation, result_ms)
  local new_row = {
    epoch = epoch, state = 'open', holder = '', incarnation = incarnation, ttl = result_ms,
    body = '', claim = '', result = '',
  }
  local set, lifetime = {row_key(id), row_text(new_row)}, unfinished_lifetime(new_row)
  if lifetime then set[3], set[4] = 'PX', string.format('%.0f', lifetime) end
  if call('SET', set[1], set[2], 'NX', unpack(set, 3)) then return true end
  local row = read_row(id)
  local is_replaced = row.state == 'open' and tonumber(row.epoch) < tonumber(epoch)
  if is_replaced then call('SET', unpack(set)) end
  return is_replaced
end
local function prolong_row(id)
  local remaining = call('PTTL', row_key(id))
  if remaining >= 0 and remaining < ROW_MS then call('PEXPIRE', row_key(id), ROW_MS) end
end
local function order_rows(ids)
  if #ids == 0 then return end
  local members = {}
  for i, id in ipairs(ids) do members[2 * i - 1], members[2 * i] = now(), id end
  call('ZADD', prefix .. 'rows', unpack(members))
end
local function reopen_row(id, row)
  if row.holder ~= '' then call('SREM', prefix .. 'held:' .. row.holder, id) end
  row.state, row.holder, row.claim, row.incarnation = 'open', '', '', ledger_info()[2] or 0
  write_row(id, row, unfinished_lifetime(row))
  order_rows({id})
end
local function remove_rows(ids)
  if #ids == 0 then return end
  local keys = {}
  for _, id in ipairs(ids) do
    local row = read_head(id)
    keys[#keys + 1] = row_key(id)
    if row and row.holder ~= '' then call('SREM', prefix .. 'held:' .. row.holder, id) end
    if row and row.body ~= '' then keys[#keys + 1] = prefix .. 'b:' .. row.body end
  end
  call('DEL', unpack(keys))
  call('ZREM', prefix .. 'rows', unpack(ids))
end
local function is_held_by(holder, row, epoch)
  return row and row.epoch == epoch and row.state == 'claimed'
    and (row.holder == holder or row.holder == FORGOTTEN)
end
