-- Arguments: version of the routing, bodies, user, number of its session, digests,
--   milliseconds to keep results or '', incarnation of the server, (id, epoch, number of the row,
--   incarnation of an earlier attempt or '', id of the fence or '', number of the run, priority,
--   request, number of its queues, queue...)...
-- Result: number of queues for each request, and the result of register_user(); or -1, incarnation
--   and session, if one of these differs, and nothing is done; or the results of `publish` without
--   a change
--
-- Creates rows that cannot conflict, and publishes their requests. An attempt without a reply is
-- repeated only if the server can determine that it was not executed. Nothing is done for a run
-- whose number is lower than that of the fence.

-- include publishing
-- include create_row
-- include session
-- include register

local refusal = check_batch()
if refusal ~= nil then return refusal end
local user, incarnation, time = ARGV[3], tostring(ledger_info()[2] or 0), now()
local number, last_row = read_session(user)
if number ~= ARGV[4] or incarnation ~= ARGV[7] then return {-1, incarnation, number or ''} end
local counts, row_times, newest_row, i = {}, {}, tonumber(last_row) or 0, 8
while i <= #ARGV do
  local id, row_number, tried_incarnation = ARGV[i], tonumber(ARGV[i + 2]), ARGV[i + 3]
  local stop, count, body = i + 8 + ARGV[i + 8], 0, body_mark(#counts + 1)
  local is_new = tried_incarnation == ''
    or (last_row ~= '*' and row_number > tonumber(last_row))
  if not is_new or is_refused(ARGV[i + 4], ARGV[i + 5]) then
    count = 1
  else
    if call('EXISTS', prefix .. 'r:' .. id) == 0 then
      local opened_in = tried_incarnation == '' and incarnation or tried_incarnation
      create_row(id, ARGV[i + 1], opened_in, ARGV[6])
      row_times[#row_times + 1] = time
      row_times[#row_times + 1] = id
    end
    for k = i + 9, stop do count = count + add_message(ARGV[k], ARGV[i + 6], ARGV[i + 7], body) end
  end
  if is_new then newest_row = math.max(newest_row, row_number) end
  counts[#counts + 1] = count
  i = stop + 1
end
if #row_times > 0 then call('ZADD', prefix .. 'rows', unpack(row_times)) end
write_messages()
begin_session(user, number, string.format('%.0f', newest_row))
counts[#counts + 1] = register_user(ARGV[5], user, time)
return counts
