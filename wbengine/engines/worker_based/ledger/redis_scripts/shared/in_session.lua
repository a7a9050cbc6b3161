-- Return nil without a change if the session of a user is over. Arguments: user, its session

-- include session

if session(ARGV[1]) ~= ARGV[2] then return false end
