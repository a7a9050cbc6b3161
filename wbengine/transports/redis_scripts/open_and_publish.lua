-- Arguments: version of the routing, bodies, user, number of its session, digest if there is none,
--   milliseconds to keep results or '', incarnation of the server, (id, epoch, number of the row,
--   incarnation of an earlier attempt or '', priority, request, number of its queues, queue...)...
-- Result: number of queues for each request, and the result of here(); or -1, incarnation and
--   session, if one of these differs, and nothing is done; or the results of `publish` without a
--   change
--
-- Creates rows that cannot conflict, and publishes their requests. An attempt without a reply is
-- repeated only if the server can determine that it was not executed.

-- include publishing
-- include create_row
-- include session
-- include register

local user, life, t = ARGV[3], tostring(ledger()[2] or 0), now()
local number, last = session(user)
if number ~= ARGV[4] or life ~= ARGV[7] then return {-1, life, number or ''} end
local counts, rows, newest, i = {}, {}, tonumber(last) or 0, 8
while i <= #ARGV do
  local id, row, before = ARGV[i], tonumber(ARGV[i + 2]), ARGV[i + 3]
  local final, count, body = i + 6 + ARGV[i + 6], 0, apart(#counts + 1)
  if before == '' or (last ~= '*' and row > tonumber(last)) then
    if call('EXISTS', P .. 'r:' .. id) == 0 then
      make(id, ARGV[i + 1], before == '' and life or before, ARGV[6])
      rows[#rows + 1] = t
      rows[#rows + 1] = id
    end
    for k = i + 7, final do count = count + place(ARGV[k], ARGV[i + 4], ARGV[i + 5], body) end
    newest = math.max(newest, row)
  else
    count = 1
  end
  counts[#counts + 1] = count
  i = final + 1
end
if #rows > 0 then call('ZADD', P .. 'rows', unpack(rows)) end
put()
begin_session(user, number, string.format('%.0f', newest))
counts[#counts + 1] = here(ARGV[5], user, t)
return counts
