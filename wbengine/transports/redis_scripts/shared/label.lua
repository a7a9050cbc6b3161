-- read_label(data) -> id, epoch and ledger digest of the row of a message; nothing if it has no row

local function read_label(data)
  if string.byte(data) ~= 33 then return end
  -- A client that knows the digest can write any label.
  local id, epoch, digest = string.match(data, '^!([%w_.-]+) (%d+) (%S+)\n')
  if id and #id <= 120 and #epoch <= 16 then return id, epoch, digest end
end
