-- Wireshark dissector for Dunlin's packets: UDP datagrams, and captures written by `dunlin_net::pcap` over any transport.
--
-- Use it once:   tshark -X lua_script:docs/dunlin.lua -r capture.pcap
--                wireshark -X lua_script:docs/dunlin.lua capture.pcap
-- Install it:    copy it to the folder that Wireshark shows under Help, About, Folders, Personal Lua Plugins.
--
-- It takes UDP port 31850 (a preference of the protocol) and, by a heuristic, every other port whose datagrams look like
-- Dunlin's. To force it on a port: tshark -d udp.port==9999,dunlin ...
--
-- Filters: dunlin.kind == 0, dunlin.request == 17, dunlin.session == 5, dunlin.malformed, ...

local DEFAULT_PORT = 31850
local VERSION = 2
-- In CONNECT, COOKIE, ACCEPT and REFUSE, whatever the endpoints speak.
local HANDSHAKE_VERSION = 1

---------------------------------------------------------------------------------------------------------------------------
-- The format. All numbers are little-endian; docs/wire-protocol.md is the specification.
--
-- A datagram holds frames: length (2 bytes), then a packet of so many bytes, then a pad byte if they are odd in number, which may be missing at
-- the end of the datagram. A length of zero is two bytes of padding.
--
-- A packet begins with a header of 16 bytes:
--    0  kind (low 4 bits), version (high 4 bits)
--    1  flags: bit 0 MULTI follows, bit 1 DEADLINE follows; bits 2 to 4 are the status of a RESPONSE, and in a REQUEST or CREDIT_RETURN how
--       often the request was cut anew; bit 5 the packet that is answered was marked by the network (ECN), bit 6 the handler kept the request
--       for later, bit 7 this is the last packet of its message
--    2  in data packets: request type (1 byte), payload length (2 bytes); in others: packet number (3 bytes)
--    5  session at the receiver (3 bytes)
--    8  request number (5 bytes)
--   13  session tag (3 bytes)
-- Then the extensions that the flags announce, 8 bytes each, in this order:
--   MULTI     message size (4 bytes), packet number (4 bytes)
--   DEADLINE  microseconds left (4 bytes), zero (4 bytes)
-- A RESPONSE of status 7 carries a code (4 bytes) and a message in UTF-8.

local HEADER_BYTES = 16
local EXTENSION_BYTES = 8
local CODE_BYTES = 4

local REQUEST, CREDIT_RETURN, REQUEST_FOR_RESPONSE, RESPONSE, PING = 0, 1, 2, 3, 10
local APPLICATION = 7

local KINDS = {
  [0] = "REQUEST", [1] = "CREDIT_RETURN", [2] = "REQUEST_FOR_RESPONSE", [3] = "RESPONSE",
  [4] = "CONNECT", [5] = "COOKIE", [6] = "ACCEPT", [7] = "REFUSE", [8] = "CLOSE", [9] = "CLOSE_ACK",
  [10] = "PING", [11] = "PONG", [12] = "RESET", [13] = "RELEASE", [14] = "CREDITS",
}

local STATUSES = {
  [0] = "ok", [1] = "busy", [2] = "no handler", [3] = "handler failed", [4] = "expired", [5] = "response too large", [6] = "overloaded",
  [7] = "application",
}

local REFUSALS = {
  [1] = "no protocol version in common", [2] = "no credits", [3] = "too many sessions", [4] = "settings", [5] = "shutting down",
  [6] = "too many sessions of this peer", [7] = "too many places of this peer",
}

local ROLES = { [0] = "borrower", [1] = "lender" }

-- Bodies of packets without data: name, bytes, and for some the texts of the values.
local PRESENCE = { { "incarnation", 8 }, { "token", 8 } }
local BODIES = {
  [4] = {
    { "version_min", 1 }, { "version_max", 1 }, { "slots", 1 }, { "zero", 1 }, { "credits", 2 }, { "reverse_credits", 2 },
    { "mtu", 2 }, { "zero", 2 }, { "message_bytes_max", 4 }, { "own_session", 4 }, { "own_tag", 4 }, { "incarnation", 8 },
    { "nonce", 8 }, { "cookie", 16 }, { "credits_start", 2 }, { "reverse_start", 2 }, { "zero", 4 },
  },
  [5] = { { "nonce", 8 }, { "cookie", 16 } },
  [6] = {
    { "nonce", 8 }, { "version_agreed", 1 }, { "slots", 1 }, { "credits", 2 }, { "reverse_credits", 2 }, { "mtu", 2 },
    { "message_bytes_max", 4 }, { "own_session", 4 }, { "own_tag", 4 }, { "credits_start", 2 }, { "reverse_start", 2 },
    { "incarnation", 8 },
  },
  -- Of packets that speak of several packets; without them they speak of one, or of all up to one.
  [1] = { { "first_missing", 4 }, { "zero", 4 }, { "arrived_mask", 8 } },
  [2] = { { "asked_packets", 4 }, { "zero", 4 } },
  [7] = { { "nonce", 8 }, { "reason", 1, REFUSALS }, { "zero", 7 } },
  [8] = PRESENCE, [9] = PRESENCE, [10] = PRESENCE, [11] = PRESENCE, [12] = PRESENCE,
  [13] = {
    { "released_0", 4 }, { "released_1", 4 }, { "released_2", 4 }, { "released_3", 4 },
    { "released_4", 4 }, { "released_5", 4 }, { "released_6", 4 }, { "released_7", 4 },
  },
  [14] = { { "role", 1, ROLES }, { "zero", 3 }, { "step", 4 }, { "held", 2 }, { "wanted", 2 }, { "zero", 4 } },
}

---------------------------------------------------------------------------------------------------------------------------
-- Fields

local dunlin = Proto("dunlin", "Dunlin RPC")
dunlin.prefs.port = Pref.uint("UDP port", DEFAULT_PORT, "UDP port of Dunlin endpoints; 0 for none")

local f = {
  frame_len = ProtoField.uint16("dunlin.frame_len", "Frame length", base.DEC),
  padding = ProtoField.bytes("dunlin.padding", "Padding"),
  kind = ProtoField.uint8("dunlin.kind", "Kind", base.DEC, KINDS, 0x0f),
  version = ProtoField.uint8("dunlin.version", "Version", base.DEC, nil, 0xf0),
  multi = ProtoField.bool("dunlin.flags.multi", "MULTI follows", 8, nil, 0x01),
  deadline = ProtoField.bool("dunlin.flags.deadline", "DEADLINE follows", 8, nil, 0x02),
  error_code = ProtoField.uint32("dunlin.error_code", "Code of the application's error", base.DEC),
  error_message = ProtoField.string("dunlin.error_message", "Message of the application's error", base.UNICODE),
  status = ProtoField.uint8("dunlin.status", "Status", base.DEC, STATUSES, 0x1c),
  ecn_echo = ProtoField.bool("dunlin.flags.ecn_echo", "The answered packet was marked (ECN)", 8, nil, 0x20),
  cut = ProtoField.uint8("dunlin.cut", "Times the request was cut anew", base.DEC, nil, 0x1c),
  last = ProtoField.bool("dunlin.flags.last", "The last packet of its message", 8, nil, 0x80),
  deferred = ProtoField.bool("dunlin.flags.deferred", "The handler kept the request for later", 8, nil, 0x40),
  req_type = ProtoField.uint8("dunlin.req_type", "Request type", base.DEC),
  payload_len = ProtoField.uint16("dunlin.payload_len", "Payload length", base.DEC),
  packet = ProtoField.uint32("dunlin.packet", "Packet number", base.DEC),
  session = ProtoField.uint24("dunlin.session", "Session", base.DEC),
  request = ProtoField.uint64("dunlin.request", "Request number", base.DEC),
  tag = ProtoField.uint24("dunlin.tag", "Session tag", base.HEX),
  message_len = ProtoField.uint32("dunlin.message_len", "Message size", base.DEC),
  deadline_us = ProtoField.uint32("dunlin.deadline_us", "Time left (us)", base.DEC),
  payload = ProtoField.bytes("dunlin.payload", "Payload"),
}

-- One field per name in BODIES.
local UINTS = { [1] = ProtoField.uint8, [2] = ProtoField.uint16, [4] = ProtoField.uint32, [8] = ProtoField.uint64 }
local body_fields = {}
for _, body in pairs(BODIES) do
  for _, entry in ipairs(body) do
    local name, bytes, texts = entry[1], entry[2], entry[3]
    if name ~= "zero" and not body_fields[name] then
      local make = UINTS[bytes] or ProtoField.bytes
      if UINTS[bytes] then
        local shown = (name == "incarnation" or name == "nonce" or name == "token" or name == "own_tag" or name == "arrived_mask") and base.HEX or base.DEC
        body_fields[name] = make("dunlin." .. name, name, shown, texts)
      else
        body_fields[name] = make("dunlin." .. name, name)
      end
    end
  end
end

local all_fields = {}
for _, field in pairs(f) do all_fields[#all_fields + 1] = field end
for _, field in pairs(body_fields) do all_fields[#all_fields + 1] = field end
dunlin.fields = all_fields

local malformed = ProtoExpert.new("dunlin.malformed", "Malformed", expert.group.MALFORMED, expert.severity.ERROR)
dunlin.experts = { malformed }

---------------------------------------------------------------------------------------------------------------------------
-- Dissection

-- The version in the header of a packet of this kind.
local function version_of(kind)
  return kind >= 4 and kind <= 7 and HANDSHAKE_VERSION or VERSION
end

-- Shows the packet `tvb`, and returns a summary of it.
local function dissect_packet(tvb, tree)
  local len = tvb:len()
  local root = tree:add(dunlin, tvb())
  if len < HEADER_BYTES then
    root:add_proto_expert_info(malformed, "Shorter than its header")
    return "[short]"
  end

  local kind = tvb(0, 1):bitfield(4, 4)
  local is_data = kind == REQUEST or kind == RESPONSE
  local name = KINDS[kind] or string.format("KIND %d", kind)
  local session, request = tvb(5, 3):le_uint(), tvb(8, 5):le_uint64()
  local summary = string.format("%s s=%d r=%s", name, session, tostring(request))

  root:add(f.kind, tvb(0, 1))
  root:add(f.version, tvb(0, 1))
  local version = tvb(0, 1):bitfield(0, 4)
  if version ~= version_of(kind) then
    root:add_proto_expert_info(malformed, string.format("Protocol version %d is not known here", version))
    return string.format("[version %d]", version)
  end
  if not KINDS[kind] then root:add_proto_expert_info(malformed, "Unknown kind") end

  root:add(f.multi, tvb(1, 1))
  root:add(f.deadline, tvb(1, 1))
  if kind == RESPONSE or kind == CREDIT_RETURN then
    root:add(f.ecn_echo, tvb(1, 1))
    if tvb(1, 1):bitfield(2, 1) == 1 then summary = summary .. " [marked]" end
  end
  if kind == REQUEST or kind == CREDIT_RETURN then
    root:add(f.cut, tvb(1, 1))
    local cut = tvb(1, 1):bitfield(3, 3)
    if cut ~= 0 then summary = string.format("%s cut=%d", summary, cut) end
  end
  if is_data then root:add(f.last, tvb(1, 1)) end
  if kind == RESPONSE then
    root:add(f.status, tvb(1, 1))
    root:add(f.deferred, tvb(1, 1))
    local status = tvb(1, 1):bitfield(3, 3)
    if status ~= 0 then summary = string.format("%s [%s]", summary, STATUSES[status] or status) end
  end

  local payload_len
  if is_data then
    payload_len = tvb(3, 2):le_uint()
    root:add(f.req_type, tvb(2, 1))
    root:add_le(f.payload_len, tvb(3, 2))
    summary = string.format("%s type=%d len=%d", summary, tvb(2, 1):uint(), payload_len)
  elseif kind == CREDIT_RETURN or kind == REQUEST_FOR_RESPONSE then
    local packet = tvb(2, 3):le_uint()
    root:add(f.packet, tvb(2, 3), packet)
    summary = string.format("%s packet=%d", summary, packet)
  end
  root:add_le(f.session, tvb(5, 3))
  root:add(f.request, tvb(8, 5), request)
  root:add_le(f.tag, tvb(13, 3))

  local at = HEADER_BYTES
  local has_multi, has_deadline = tvb(1, 1):bitfield(7, 1) == 1, tvb(1, 1):bitfield(6, 1) == 1
  local extensions = (has_multi and EXTENSION_BYTES or 0) + (has_deadline and EXTENSION_BYTES or 0)
  if at + extensions > len then
    root:add_proto_expert_info(malformed, "Shorter than its extensions")
    return summary .. " [short]"
  end
  if has_multi then
    root:add_le(f.message_len, tvb(at, 4))
    root:add_le(f.packet, tvb(at + 4, 4))
    summary = string.format("%s packet=%d of %d B", summary, tvb(at + 4, 4):le_uint(), tvb(at, 4):le_uint())
    at = at + EXTENSION_BYTES
  end
  if has_deadline then
    root:add_le(f.deadline_us, tvb(at, 4))
    at = at + EXTENSION_BYTES
  end

  if payload_len and payload_len ~= len - at then
    root:add_proto_expert_info(malformed, string.format("Payload of %d bytes announced, %d there", payload_len, len - at))
  end
  if BODIES[kind] and len > at then
    for _, entry in ipairs(BODIES[kind]) do
      local field, bytes = body_fields[entry[1]], entry[2]
      if at + bytes > len then
        root:add_proto_expert_info(malformed, "Shorter than its body")
        break
      end
      if field then root:add_le(field, tvb(at, bytes)) end
      at = at + bytes
    end
  end
  if kind == PING and at < len then
    root:add(f.padding, tvb(at, len - at))
    summary = string.format("%s probe=%d", summary, len)
    return summary
  end
  if kind == RESPONSE and tvb(1, 1):bitfield(3, 3) == APPLICATION and at + CODE_BYTES <= len then
    root:add_le(f.error_code, tvb(at, CODE_BYTES))
    root:add(f.error_message, tvb(at + CODE_BYTES, len - at - CODE_BYTES))
    return string.format("%s code=%d", summary, tvb(at, CODE_BYTES):le_uint())
  end
  if at < len then root:add(f.payload, tvb(at, len - at)) end
  return summary
end

function dunlin.dissector(tvb, pinfo, tree)
  pinfo.cols.protocol = "Dunlin"
  local summaries = {}
  local at, len = 0, tvb:len()
  while at + 2 <= len do
    local frame_len = tvb(at, 2):le_uint()
    if frame_len == 0 then
      local start = at
      while at + 2 <= len and tvb(at, 2):le_uint() == 0 do at = at + 2 end
      tree:add(f.padding, tvb(start, at - start))
      goto continue
    end
    tree:add_le(f.frame_len, tvb(at, 2))
    at = at + 2
    if at + frame_len > len then
      tree:add(dunlin, tvb(at - 2)):add_proto_expert_info(malformed, "A frame goes on past the end of the datagram")
      summaries[#summaries + 1] = "[short frame]"
      break
    end
    summaries[#summaries + 1] = dissect_packet(tvb(at, frame_len):tvb(), tree)
    at = at + frame_len + frame_len % 2
    ::continue::
  end
  pinfo.cols.info = table.concat(summaries, " | ")
  return len
end

-- Whether a datagram begins with a whole frame whose packet has a known kind and its version.
local function looks_like_ours(tvb, pinfo, tree)
  if tvb:len() < 2 + HEADER_BYTES then return false end
  local frame_len = tvb(0, 2):le_uint()
  if frame_len < HEADER_BYTES or 2 + frame_len > tvb:len() then return false end
  local kind = tvb(2, 1):bitfield(4, 4)
  if tvb(2, 1):bitfield(0, 4) ~= version_of(kind) or not KINDS[kind] then return false end
  dunlin.dissector(tvb, pinfo, tree)
  return true
end

local udp_ports = DissectorTable.get("udp.port")
local registered_port = DEFAULT_PORT
udp_ports:add(registered_port, dunlin)
udp_ports:add_for_decode_as(dunlin)
dunlin:register_heuristic("udp", looks_like_ours)

function dunlin.prefs_changed()
  if dunlin.prefs.port == registered_port then return end
  if registered_port > 0 then udp_ports:remove(registered_port, dunlin) end
  registered_port = dunlin.prefs.port
  if registered_port > 0 then udp_ports:add(registered_port, dunlin) end
end
