-- Arguments: key code or empty, character or empty, modifiers separated by commas.
on run argv
	set theCode to item 1 of argv
	set theCharacter to item 2 of argv
	set theNames to item 3 of argv
	set held to {}
	tell application "System Events"
		if theNames contains "command" then set end of held to command down
		if theNames contains "control" then set end of held to control down
		if theNames contains "option" then set end of held to option down
		if theNames contains "shift" then set end of held to shift down
		if theCode is not "" then
			key code (theCode as integer) using held
		else
			keystroke theCharacter using held
		end if
	end tell
end run
