-- finish_row(id, row, result, ID of the rest if out of line or '', milliseconds to keep it)
--   -> mark of this body, which from now on is deleted with the row; nil if there is none, or if the
--   row has been deleted, because its result is not kept
-- write_finished(holder): record the finished rows
--
-- If the row may expire before the queue of a silent engine, its body expires with that queue.

-- include rows

local finished_ids, deleted_ids = {}, {}
local function finish_row(id, row, result, body, result_ms)
  row.state, row.holder, row.claim, row.result, row.body = 'done', '', '', result, body
  local lifetime = math.min(tonumber(row.ttl) or math.huge, tonumber(result_ms) or math.huge)
  finished_ids[#finished_ids + 1] = id
  if lifetime == 0 then
    call('DEL', row_key(id))
    deleted_ids[#deleted_ids + 1] = id
    return
  end
  local is_limited = lifetime < math.huge
  write_row(id, row, is_limited and lifetime)
  if body == '' then return end
  if is_limited then
    call('PEXPIRE', prefix .. 'b:' .. body, math.max(lifetime, OWNED_QUEUE_MS))
  else
    call('PERSIST', prefix .. 'b:' .. body)
  end
  return '&' .. body
end
local function write_finished(holder)
  if #finished_ids > 0 then call('SREM', prefix .. 'held:' .. holder, unpack(finished_ids)) end
  order_rows(finished_ids)
  if #deleted_ids > 0 then call('ZREM', prefix .. 'rows', unpack(deleted_ids)) end
end
