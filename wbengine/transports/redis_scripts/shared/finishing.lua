-- finish_row(id, row, result, milliseconds to keep it, for the holder) -> whether the row has been
--   deleted, because its result is not kept
-- write_finished(holder): record the finished rows
-- keep_body(id, ID of a body) -> mark of the body, which from now on is deleted with the row
--
-- If the row may expire before the queue of a silent engine, its body expires with that queue.

-- include rows

local finished_ids, deleted_ids = {}, {}
local function finish_row(id, row, result, result_ms)
  local row_key = prefix .. 'r:' .. id
  call('HSET', row_key, 's', 'done', 'd', result, 'h', '', 'k', '')
  local lifetime = math.min(tonumber(row[6] or ROW_MS), tonumber(result_ms) or math.huge)
  if lifetime < ROW_MS then call('PEXPIRE', row_key, string.format('%.0f', lifetime)) end
  finished_ids[#finished_ids + 1] = id
  if lifetime == 0 then deleted_ids[#deleted_ids + 1] = id end
  return lifetime == 0
end
local function write_finished(holder)
  if #finished_ids > 0 then call('SREM', prefix .. 'held:' .. holder, unpack(finished_ids)) end
  order_rows(finished_ids)
  if #deleted_ids > 0 then call('ZREM', prefix .. 'rows', unpack(deleted_ids)) end
end
local function keep_body(id, body)
  local row_key, body_key = prefix .. 'r:' .. id, prefix .. 'b:' .. body
  call('HSET', row_key, 'b', body)
  local remaining = call('PTTL', row_key)
  if remaining < 0 then
    call('PERSIST', body_key)
  else
    call('PEXPIRE', body_key, math.max(remaining, OWNED_QUEUE_MS))
  end
  return '&' .. body
end
