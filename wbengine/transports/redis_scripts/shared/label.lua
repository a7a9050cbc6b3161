-- label(data) -> id, epoch and ledger digest of the row of a message, or nothing if it has no row

local function label(data)
  if string.byte(data) ~= 33 then return end
  -- Who knows the digest may have written anything.
  local id, epoch, digest = string.match(data, '^!([%w_.-]+) (%d+) (%S+)\n')
  if id and #id <= 120 and #epoch <= 16 then return id, epoch, digest end
end
